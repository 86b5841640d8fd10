"""The endpoint: who may ask, what is refused and how, and that nothing holds it up."""

from __future__ import annotations

import asyncio
import io
import json
import re
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.peers.memory_desk import QUICK, MemoryDesk, ask, sentence, serving
from unwalk.core.errors import InvalidInput
from unwalk.peers.forgetting import request_form
from unwalk.peers.telemetry import Journal
from unwalk.peers.web import routes
from unwalk.peers.web import views as d
from unwalk.peers.web.client import Asker
from unwalk.peers.web.connections import HttpLimits
from unwalk.peers.web.routes import api_description


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(MemoryDesk(), tmp_path_factory.mktemp("peer")) as found:
        yield found


@pytest.fixture
def fresh(tmp_path):
    with serving(MemoryDesk(), tmp_path) as found:
        yield found


def test_a_request_is_taken_in_followed_and_certified(fresh):
    form = {"id": "ward-7", "records": ["r-1", "r-2"], "grade": "exact"}
    code, made, headers = ask(fresh, "POST", "/v1/requests", form)
    assert code == 202
    assert headers["location"] == "/v1/requests/ward-7"
    assert (made["stage"], made["records"], made["epsilon"]) == ("waiting", 2, None)
    assert ask(fresh, "POST", "/v1/requests", form)[:2] == (202, made)
    assert len(fresh.desk.views) == 1
    fresh.desk.settle("ward-7")
    code, now, _ = ask(fresh, "GET", headers["location"])
    assert (code, now["stage"], now["certificate"]) == (200, "done", "chapter-1.json")
    code, found, headers = ask(fresh, "GET", "/v1/certificates/chapter-1.json")
    assert (code, found["certificate"]) == (200, 1)
    assert headers["content-disposition"] == 'attachment; filename="chapter-1.json"'
    code, packed, headers = ask(fresh, "GET", "/v1/certificates/chapter-1.json/files")
    assert (code, headers["content-type"]) == (200, "application/zip")
    assert 'filename="chapter-1.zip"' in headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(packed)) as inside:
        assert json.loads(inside.read("certificate.json")) == found
    code, page, headers = ask(fresh, "GET", "/v1/certificates/chapter-1.json/page")
    assert (code, page, headers["content-type"]) == (
        200,
        b"<!doctype html>",
        "text/html; charset=utf-8",
    )
    assert 'filename="chapter-1.html"' in headers["content-disposition"]
    for part in ("files", "page"):
        assert ask(fresh, "GET", f"/v1/certificates/chapter-9/{part}")[0] == 404
    code, said, _ = ask(fresh, "GET", "/v1/certificates/chapter-1.json/verify")
    assert (code, said["problems"]) == (200, [])
    code, listed, _ = ask(fresh, "GET", "/v1/certificates")
    assert [c["name"] for c in listed["certificates"]] == ["chapter-1.json"]
    code, status, _ = ask(fresh, "GET", "/v1/status")
    assert (code, status["queue"]) == (200, {"done": 1})


@pytest.mark.parametrize(
    ("asked", "grade", "epsilon", "delta"),
    [
        ({}, "exact", None, None),
        ({"grade": None, "method": "restart"}, "exact", None, None),
        ({"grade": "certified"}, "certified", 1.0, 1e-5),
        ({"epsilon": 0.5}, "certified", 0.5, 1e-5),
        ({"delta": 1e-6}, "certified", 1.0, 1e-6),
    ],
)
def test_a_request_gets_a_grade_that_any_network_gives_and_the_usual_budget(
    fresh, asked, grade, epsilon, delta
):
    _, made, _ = ask(fresh, "POST", "/v1/requests", {"records": ["r-1"], **asked})
    assert (made["grade"], made["epsilon"], made["delta"]) == (grade, epsilon, delta)
    assert request_form.REQUEST_ID.fullmatch(made["id"])


def test_what_cannot_be_done_is_said_and_changes_nothing(fresh):
    ask(fresh, "POST", "/v1/requests", {"id": "a", "records": ["r-1"]})
    code, found, _ = ask(fresh, "POST", "/v1/requests", {"id": "a", "records": ["r-2"]})
    assert code == 409
    assert "other content" in sentence(found)
    code, found, _ = ask(fresh, "POST", "/v1/requests", {"records": ["r-2", "x-1", "x-2"]})
    assert (code, found["unknown"]) == (422, ["x-1", "x-2"])
    assert "'x-1', 'x-2'" in sentence(found)
    code, found, _ = ask(fresh, "POST", "/v1/requests", {"records": ["r-2"], "method": "seal"})
    assert code == 422
    assert "not convex. What to do instead: ask for grade exact." in sentence(found)
    assert list(fresh.desk.views) == ["a"]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"records": []}, "0 ids"),
        ({"records": ["r-1", "r-1"]}, "'r-1' twice"),
        ({"records": ["a\nb"]}, r"records[0] is 'a\\nb'"),
        ({"records": ["r-1", 7]}, "records[1] is '7'"),
        ({"records": ["x" * 257]}, "records[0]"),
        ({"records": "r-1"}, "'records' is 'r-1'; allowed: a list"),
        ({"records": {"r-1": 1}}, "'records' is "),
        ({"records": None}, "lacks 'records'"),
        ({}, "lacks 'records'"),
        ([], "no JSON object"),
        ({"records": ["r-1"], "epsilom": 1}, "did you mean epsilon?"),
        ({"records": ["r-1"], "grade": "perfect"}, "allowed: certified, exact"),
        ({"records": ["r-1"], "grade": ["exact"]}, "grade is"),
        ({"records": ["r-1"], "grade": "exact", "epsilon": 1}, "leave it out"),
        ({"records": ["r-1"], "epsilon": 0}, "epsilon is 0"),
        ({"records": ["r-1"], "epsilon": "1"}, "epsilon is '1'"),
        ({"records": ["r-1"], "epsilon": True}, "epsilon is True"),
        ({"records": ["r-1"], "delta": 1}, "delta is 1"),
        ({"records": ["r-1"], "id": "../x"}, "id is '../x'"),
        ({"records": ["r-1"], "id": 5}, "id is '5'"),
        ({"records": ["r-1"], "method": "Seal it"}, "method is"),
        ({"records": ["r-1"], "method": ["seal"]}, "method is"),
    ],
    ids=str,
)
def test_a_bad_form_is_refused_with_one_sentence(served, record, words):
    before = served.desk.submitted
    code, found, _ = ask(served, "POST", "/v1/requests", record)
    assert code == 422
    assert words.replace("\\\\", "\\") in sentence(found)
    assert served.desk.submitted == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"records": ["r-1"], "records": ["r-2"]}',
        b'{"records": ["r-1"], "epsilon": NaN}',
        b'{"records": ["r-1"], "epsilon": Infinity}',
        b'\xff{"records": ["r-1"]}',
        b"[" * 100_000,
        b"1" * 100_000,
        b'{"records": ["r-1"], "epsilon": 1%s}' % (400 * b"0"),
        b'{"records": ["r-1"], "delta": -1%s}' % (400 * b"0"),
        b'{"records": ["r-1"], "epsilon": 1e999}',
        b'{"records": ["r-1"], "epsilon": 9223372036854775808}',
    ],
    ids=range(12),
)
def test_a_body_that_is_no_json_is_refused(served, body):
    code, found, _ = ask(served, "POST", "/v1/requests", body=body)
    assert code == 400
    assert "not JSON" in sentence(found)


def test_a_full_disk_is_no_fault_of_the_request(served):
    served.desk.disk = "full"
    try:
        code, found, headers = ask(served, "POST", "/v1/requests", {"records": ["r-1"]})
        assert ask(served, "GET", "/v1/status")[1]["disk"] == "full"
    finally:
        served.desk.disk = "ok"
    assert code == 503
    assert headers["retry-after"] == "10"
    assert "disk of this peer is full" in sentence(found)


def test_a_record_id_in_half_a_character_is_refused(served):
    code, found, _ = ask(served, "POST", "/v1/requests", body=b'{"records": ["\\ud800"]}')
    assert code == 422
    assert "records[0]" in sentence(found)


def test_the_largest_request_is_taken_and_a_larger_one_refused(tmp_path):
    desk = MemoryDesk()
    desk.known = {f"{i:032d}" for i in range(request_form.MOST_RECORDS + 1)}
    ids = sorted(desk.known)
    with serving(desk, tmp_path) as served:
        code, made, _ = ask(served, "POST", "/v1/requests", {"records": ids[:-1]})
        assert (code, made["records"]) == (202, request_form.MOST_RECORDS)
        code, found, _ = ask(served, "POST", "/v1/requests", {"records": ids})
        assert code == 422
        assert "100001 ids" in sentence(found)


@pytest.mark.parametrize("path", ["status", "requests", "requests/a", "certificates", "nothing"])
@pytest.mark.parametrize("given", [None, "wrong", "é", "Bearer"], ids=str)
def test_nothing_without_the_token(served, path, given):
    code, found, headers = ask(served, "GET", f"/v1/{path}", token=given)
    assert code == 401
    assert "http.token" in sentence(found)
    assert served.token not in json.dumps(found)
    assert headers["www-authenticate"] == "Bearer"


def test_another_scheme_or_a_cookie_is_no_token(served):
    for header in ({"Authorization": f"Basic {served.token}"}, {"Cookie": f"token={served.token}"}):
        assert ask(served, "GET", "/v1/status", token=None, **header)[0] == 401
    assert ask(served, "GET", f"/v1/status?token={served.token}", token=None)[0] == 401
    assert (
        ask(served, "GET", "/v1/status", token=None, Authorization=f"bearer {served.token}")[0]
        == 200
    )


def test_a_wrong_token_is_logged_and_the_body_not_read(tmp_path):
    said: list[dict[str, Any]] = []
    journal = Journal(None, "peer-0", [said.append])
    with serving(MemoryDesk(), tmp_path, journal=journal) as served:
        served.http.gate.clock = lambda: 100.0
        for _ in range(5):
            record = {"records": ["r-1"]}
            assert ask(served, "POST", "/v1/requests", record, token="wrong")[0] == 401
        assert served.desk.submitted == 0
    assert [s["event"] for s in said] == ["http started", "http refused"]
    assert said[1]["status"] == 401
    assert "wrong" not in json.dumps(said)


def test_the_asker_raises_what_the_desk_raised(served):
    asker = Asker(served.url, served.token)
    with pytest.raises(request_form.UnknownRecords) as found:
        asker.submit(request_form.RequestForm("asker", ("x-1", "r-1")))
    assert found.value.ids == ("x-1",)
    made = asker.submit(request_form.RequestForm("asker", ("r-1",), "exact"))
    assert asker.request("asker") == made
    assert made in asker.requests()
    with pytest.raises(request_form.Conflict, match="other content"):
        asker.submit(request_form.RequestForm("asker", ("r-2",)))
    with pytest.raises(InvalidInput, match="no request 'nobody'"):
        asker.request("nobody")
    served.desk.settle("asker", pending=("peer-3",))
    (one,) = asker.certificates()
    assert one == served.desk.certificates()[0]
    assert asker.certificate(one.name) == served.desk.certificate(one.name)
    with pytest.raises(InvalidInput, match="access token is missing or wrong"):
        Asker(served.url, "wrong").status()
    with pytest.raises(InvalidInput, match="allowed: http"):
        Asker("ftp://127.0.0.1/", "x")
    with pytest.raises(InvalidInput, match="does not answer"):
        Asker("http://127.0.0.1:1/", "x").status()


def test_pages_of_requests_cover_all_once(tmp_path):
    desk = MemoryDesk()
    for i in range(57):
        asyncio.run(desk.submit(request_form.RequestForm(f"q-{i}", (f"r-{i}",))))
    with serving(desk, tmp_path) as served:
        seen: list[str] = []
        further = ""
        while True:
            _, page, _ = ask(served, "GET", f"/v1/requests?limit=10{further}")
            seen += [r["id"] for r in page["requests"]]
            if page["next"] is None:
                break
            further = f"&after={page['next']}"
        assert seen == [f"q-{i}" for i in range(56, -1, -1)]
        code, found, _ = ask(served, "GET", "/v1/requests?after=nobody")
        assert code == 404
        assert "'nobody'" in sentence(found)


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "limit=", "limit=1&limit=2", "after=%2e%2e%2f", "x=1",
     "limit=%ff", "&".join(f"a{i}" for i in range(40)), "limit=%D9%A1"],
)  # fmt: skip
def test_a_bad_query_is_refused(served, query):
    code, found, _ = ask(served, "GET", f"/v1/requests?{query}")
    assert code == 400
    assert sentence(found)


def test_other_methods_are_told_which_are_allowed(served):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        code, found, headers = ask(served, method, "/v1/requests")
        assert (code, headers["allow"]) == (405, "GET, HEAD, POST")
        assert "GET, HEAD, POST" in sentence(found)
    code, _, headers = ask(served, "POST", "/", {})
    assert (code, headers["allow"]) == (405, "GET, HEAD")


def test_head_is_get_without_a_body(served):
    _, _, got = ask(served, "GET", "/v1/status")
    code, body, headers = ask(served, "HEAD", "/v1/status")
    assert (code, body) == (200, b"")
    assert headers["content-length"] == got["content-length"]


def test_what_is_known_is_not_sent_again(served):
    _, _, headers = ask(served, "GET", "/v1/status")
    again = {"If_None_Match": headers["etag"]}
    assert ask(served, "GET", "/v1/status", **again)[:2] == (304, b"")
    served.desk.token = d.TokenView("peer-3", False, served.desk.token.hop + 1, 60)
    assert ask(served, "GET", "/v1/status", **again)[0] == 200


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/draw.js", "text/javascript; charset=utf-8"),
        ("/session.js", "text/javascript; charset=utf-8"),
        ("/table.js", "text/javascript; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
        ("/docs", "text/html; charset=utf-8"),
        ("/openapi.json", "application/json"),
    ],
)
def test_pages_need_no_token_and_no_outside_address(served, path, kind):
    code, body, headers = ask(served, "GET", path, token=None)
    assert (code, headers["content-type"]) == (200, kind)
    text = body.decode() if isinstance(body, bytes) else json.dumps(body)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert served.token not in text
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in headers
    assert not [h for h in headers if h.startswith("access-control")]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/nothing", 404), ("/v1/requests/nobody", 404), ("/v1/requests/%2e%2e%2fx", 404),
        ("/v1/certificates/..%2f..%2fca.key", 404), ("/v1/certificates/nobody/verify", 404),
        ("/v1/certificates/%00", 404), ("/../etc/passwd", 404), ("/page/app.js", 404),
        ("/v1/requests/", 404), ("/v1/requests/%ff", 404), ("//", 404),
        ("/v1/status?x=1", 400), ("/docs?x", 400),
    ],
)  # fmt: skip
def test_other_paths_lead_nowhere(served, path, code):
    found = ask(served, "GET", path)
    assert found[0] == code
    assert sentence(found[1])


def test_a_fault_inside_says_nothing_of_it(fresh):
    fresh.desk.broken = True
    code, found, _ = ask(fresh, "GET", "/v1/status")
    assert code == 500
    assert "r-17" not in sentence(found)
    fresh.desk.broken = False
    assert ask(fresh, "GET", "/v1/status")[0] == 200


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([f.name for f in fields(request_form.RequestForm)]), inner
            )
        ),
    )
)
@settings(max_examples=100)  # fmt: skip
def test_any_form_is_taken_or_refused(record):
    refused, form = "", None
    try:
        form = request_form.RequestForm.from_json(record)
    except InvalidInput as error:
        refused = str(error)
    if form is None:
        assert refused.endswith(".")
    else:
        assert form.records
        assert (form.epsilon is None) == (form.grade == "exact")


def test_the_description_says_what_the_views_are():
    schemas = api_description()["components"]["schemas"]
    for view in (d.Overview, request_form.RequestView, d.CertificateView, d.Spent):
        assert list(schemas[view.__name__]["properties"]) == [f.name for f in fields(view)]
    assert set(schemas["RequestForm"]["properties"]) == {
        f.name for f in fields(request_form.RequestForm)
    }
    assert schemas["Overview"]["properties"]["edges"]["items"]["maxItems"] == 2
    assert not re.findall(r":\w+:`", json.dumps(api_description())), "marks for programmers"
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(api_description())))
    assert named <= set(schemas)


def test_every_path_of_the_description_is_served(served):
    for path, verbs in api_description()["paths"].items():
        real = path.replace("{id}", "nobody").replace("{name}", "nobody")
        _, _, headers = ask(served, "PUT", real)
        assert {v.upper() for v in verbs} <= set(headers["allow"].split(", ")) | {"HEAD"}


def test_the_page_wears_the_colours_of_the_reports():
    from unwalk.reports.page import DARK, LIGHT

    sheet = Path(routes.__file__).with_name("page").joinpath("style.css").read_text()
    light, dark = re.findall(r":root\{([^}]*)\}", sheet)
    for text, palette in ((light, LIGHT), (dark, DARK)):
        mine = dict(re.findall(r"--([a-z-]+):(#[0-9a-f]{6})", text))
        for name in ("page", "card", "ink", "soft", "line", "node", "right", "wrong"):
            assert mine[name] == palette[name]
    assert QUICK.connections == HttpLimits().connections
