"""Schemathesis against a running endpoint: whatever is sent, it answers as its description says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.peers.memory_desk import MemoryDesk, Served, serving
from unwalk.peers.forgetting.request_form import RequestForm
from unwalk.peers.web.routes import api_description

SCHEMA = schemathesis.openapi.from_dict(api_description())
UNHURRIED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


class Everything(set[str]):
    """Records of whatever id."""

    def __contains__(self, _record: object) -> bool:
        return True


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    desk = MemoryDesk()
    desk.known = Everything()
    for i in range(3):
        asyncio.run(desk.submit(RequestForm(f"q-{i}", (f"r-{i}",), "exact")))
    desk.settle("q-0")
    with serving(desk, tmp_path_factory.mktemp("peer")) as found:
        yield found


def check(case: schemathesis.Case[Any], served: Served) -> None:
    before = served.desk.submitted, len(served.desk.views)
    answer = case.call_and_validate(
        base_url=served.url.rstrip("/"), headers={"Authorization": f"Bearer {served.token}"}
    )
    if answer.status_code != 202:
        assert len(served.desk.views) == before[1]


@SCHEMA.parametrize()
@settings(max_examples=40, suppress_health_check=UNHURRIED)
def test_whatever_is_sent(case, served):
    check(case, served)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_whatever_is_sent_for_long_and_in_whatever_order(served, tmp_path):
    command = [Path(sys.executable).with_name("st"), "run", f"{served.url}openapi.json"]
    command += ["--header", f"Authorization: Bearer {served.token}", "--max-examples", "2000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "Stateful" in done.stdout
    assert "No issues found" in done.stdout
