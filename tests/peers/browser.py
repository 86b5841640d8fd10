"""A headless Chromium for tests, and what it can say about a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # it needs a package or rights that not every machine has; the pages are ours
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

CONTRAST = """
const channel = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const parse = (text) => {
  const n = text.match(/[\\d.]+/g).map(Number);
  return text.startsWith("color(srgb") ? [n[0] * 255, n[1] * 255, n[2] * 255, n[3] ?? 1]
    : [n[0], n[1], n[2], n[3] ?? 1];
};
const light = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255)
  + 0.0722 * channel(b / 255);
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour[3] === 1) return colour;
    if (colour[3] > 0) throw new Error("a background that is half transparent");
  }
  return [255, 255, 255, 1];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim()) continue;
  if (!node.checkVisibility({ visibilityProperty: true })) continue;
  if (node.closest(".unseen, title, desc, noscript")) continue;
  const style = getComputedStyle(node);
  const ink = parse(node.closest("svg") ? style.fill : style.color);
  const [a, b] = [light(ink), light(behind(node.closest("svg") || node))].sort((x, y) => y - x);
  found.push([(a + 0.05) / (b + 0.05), walker.currentNode.data.trim().slice(0, 40)]);
}
return found;
"""
"""Contrast (WCAG 2) of every text that is shown, with its words."""

FOCUSED = """
const at = document.activeElement;
if (!at || at === document.body) return null;
const style = getComputedStyle(at);
const box = at.getBoundingClientRect();
return { name: at.getAttribute("aria-label") || at.id || at.textContent.trim().slice(0, 40),
  tag: at.tagName.toLowerCase(), outline: style.outlineStyle, width: parseFloat(style.outlineWidth),
  shown: box.width > 0 && box.height > 0 && box.right > 0 };
"""


class Browser:
    """A driver with the few questions that tests ask."""

    def __init__(self, driver: WebDriver, downloads: Path) -> None:
        self.driver, self.downloads = driver, downloads

    def open(self, url: str) -> None:
        """Load a page from scratch, as somebody who was never there."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(url)

    def look(self, width: int = 1200, height: int = 900, *, dark: bool = False) -> None:
        """The size of the window, and light or dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def command(self, name: str, **settings: Any) -> Any:
        """Ask the browser itself."""
        return self.driver.execute_cdp_cmd(name, settings)

    def script(self, text: str, *arguments: Any) -> Any:
        """Run JavaScript in the page."""
        return self.driver.execute_script(text, *arguments)

    def text(self, selector: str) -> str:
        """What is shown of an element."""
        found = self.script("return document.querySelector(arguments[0]).innerText", selector)
        return str(found).strip()

    def until(self, test: str, timeout: float = 10.0) -> Any:
        """Wait until a JavaScript expression holds, and return its value."""
        return WebDriverWait(self.driver, timeout, 0.03).until(
            lambda _: self.script(f"return {test}"), f"never true: {test}"
        )

    def now(self) -> None:
        """Let the page ask at once, instead of in two seconds."""
        self.script("document.dispatchEvent(new Event('visibilitychange'))")

    def requested(self) -> list[str]:
        """Every address asked for since :meth:`open`, without those that the policy held back."""
        asked: dict[str, str] = {}
        for line in self.driver.get_log("performance"):
            message = json.loads(line["message"])["message"]
            about = message["params"]
            if message["method"] == "Network.requestWillBeSent":
                asked[about["requestId"]] = str(about["request"]["url"])
            elif about.get("blockedReason") == "csp":
                asked.pop(about["requestId"], None)
        return list(asked.values())

    def complaints(self) -> list[str]:
        """What the browser wrote into its console since :meth:`open`."""
        return [str(line["message"]) for line in self.driver.get_log("browser")]

    def tree(self) -> list[dict[str, Any]]:
        """What a screen reader sees: role, name and properties of everything."""
        nodes = self.command("Accessibility.getFullAXTree")["nodes"]
        return [
            {
                "role": node.get("role", {}).get("value", ""),
                "name": node.get("name", {}).get("value", ""),
                **{p["name"]: p["value"].get("value") for p in node.get("properties", [])},
            }
            for node in nodes
            if not node.get("ignored")
        ]


@contextmanager
def chromium(downloads: Path) -> Iterator[Browser]:
    """Start Chromium; the test is skipped (in CI: fails) where it is not installed."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = Options()
    options.binary_location = program
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.add_experimental_option(
        "prefs", {"download.default_directory": str(downloads), "profile.password_manager": False}
    )
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(found, downloads)
    finally:
        found.quit()
