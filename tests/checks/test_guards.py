"""Guards of peers and certificates, each broken in a copy of the code: a quick test has to notice.

A guard that no test misses could be taken out, or turned round, without anybody seeing it.  Each
line of :data:`GUARDS` says what is put in the place of what, which test then fails, and with which
words: a test that fails for another reason does not count.  Where the code has changed so that
``before`` does not stand there exactly once, :func:`test_every_guard_stands_where_it_is_broken`
fails: say there what the guard looks like now.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCE = ROOT / "src" / "unwalk"


@dataclass(frozen=True)
class Guard:
    """A check in ``file``, how it is broken, and the test that ``says`` so."""

    name: str
    file: str
    before: str
    after: str
    test: str
    says: str


GUARDS = (
    Guard(
        "a decision needs a quorum",
        "peers/protocol/consensus.py",
        "enough = len(voters) == len(votes) >= rules.quorum",
        "enough = len(voters) == len(votes) >= rules.quorum - 1",
        "tests/peers/test_decisions.py::test_a_decision_needs_all_its_votes",
        "assert not de.check_decision(rules, wrong)",
    ),
    Guard(
        "no vote against a lock",
        "peers/protocol/consensus.py",
        "if vote.since < _bound(state, vote.value):",
        "if False:",
        "tests/peers/test_decisions.py::test_within_f_liars_one_value_is_decided",
        "an honest peer could be blamed",
    ),
    Guard(
        "a hop follows the route's rule",
        "peers/handover/checks.py",
        "if same != (offer.move.receiver, offer.move.path, dict(offer.move.memory)):",
        "if False:",
        "tests/peers/test_log_lies.py::test_a_token_that_leaves_the_route_is_refused",
        "assert refused()",
    ),
    Guard(
        "the route of every token is drawn again",
        "peers/handover/receiving.py",
        'self.walk.gate.route(offer, file.header["memory"])',
        "pass",
        "tests/peers/test_log_lies.py::test_a_token_that_leaves_the_route_is_refused",
        "assert refused()",
    ),
    Guard(
        "a whole log follows the route",
        "peers/handover/log_rules.py",
        'if (move.receiver, move.path) != (visit["receiver"], tuple(visit["path"])):',
        "if False:",
        "tests/peers/test_log_lies.py"
        "::test_entries_that_do_not_go_on_from_the_one_before_them_are_refused",
        "DID NOT RAISE",
    ),
    Guard(
        "a visit tells of the plan's work",
        "peers/handover/log_rules.py",
        "if all(_foreseen(events) != _foreseen(one) for one in planned):",
        "if False:",
        "tests/peers/test_log_lies.py::test_a_peer_without_records_tells_of_a_visit_without_steps",
        "DID NOT RAISE",
    ),
    Guard(
        "a recovery opens the generation that was signed for",
        "peers/handover/log_rules.py",
        'asked = Question(self.run, peer, body["previous"], generation[0])',
        'asked = Question(self.run, peer, body["previous"], before[-1][0][0] + 1)',
        "tests/peers/test_lies.py::test_every_entry_of_a_log_is_checked_against_the_one_before",
        "DID NOT RAISE",
    ),
    Guard(
        "who lost the token is not counted",
        "peers/handover/log_rules.py",
        'who not in (peer, body["lost"])',
        "who != peer",
        "tests/peers/test_lies.py::test_every_entry_of_a_log_is_checked_against_the_one_before",
        "DID NOT RAISE",
    ),
    Guard(
        "who does not count opens no generation",
        "peers/handover/log_rules.py",
        "if peer not in self.rules.members:",
        "if False:",
        "tests/peers/test_lies.py::test_every_entry_of_a_log_is_checked_against_the_one_before",
        "DID NOT RAISE",
    ),
    Guard(
        "weights that arrive are finite",
        "peers/storage/token_files.py",
        "if not math.isfinite(value):",
        "if False:",
        "tests/peers/test_tokens_and_talk.py"
        "::test_weights_that_are_not_finite_are_refused_whatever_the_limit",
        "Regex pattern did not match",
    ),
    Guard(
        "weights are within a limit",
        "peers/storage/token_files.py",
        "if not low <= value <= high:",
        "if False:",
        "tests/peers/test_tokens_and_talk.py::test_weights_that_are_too_large_are_refused",
        "DID NOT RAISE",
    ),
    Guard(
        "second moments are not negative",
        "peers/storage/token_files.py",
        "return 0.0 if name in UNSIGNED else -high, high",
        "return -high, high",
        "tests/peers/test_tokens_and_talk.py::test_a_second_moment_below_zero_is_refused",
        "DID NOT RAISE",
    ),
    Guard(
        "a token counts the steps that its log tells of",
        "peers/handover/checks.py",
        "if place.steps is not None and said != place.steps:",
        "if False:",
        "tests/peers/test_odd_tokens.py"
        "::test_what_the_plan_does_not_have_at_a_hop_is_refused[few steps]",
        "assert re.search(why, reasons)",
    ),
    Guard(
        "what a visit leaves is cut off at the limit",
        "peers/handover/early_visit.py",
        "largest=walk.limits.weight,",
        "",
        "tests/peers/test_odd_tokens.py"
        "::test_a_visit_that_leaves_too_large_values_is_cut_off_and_handed_on"
        "[beyond it after a visit]",
        "AssertionError",
    ),
    Guard(
        "the limit is the network's",
        "peers/handover/checks.py",
        "largest = self.network.limits.weight",
        'largest = float("inf")',
        "tests/peers/test_trials.py::test_a_trial_of_every_kind[weights of 1e30]",
        "violated",
    ),
    Guard(
        "no vote for a chapter in its own name that a peer did not write",
        "peers/lifecycle/next_chapter.py",
        "good = self._is_mine(spec, text) and self.stands_for(spec)",
        "good = self.stands_for(spec)",
        "tests/peers/test_revocations.py"
        "::test_a_peer_votes_for_no_chapter_in_its_name_that_it_did_not_write",
        "assert not victim.next_chapter._judge(text, False)",
    ),
    Guard(
        "receipts and pending are all peers",
        "peers/forgetting/peer_certificate.py",
        "if not everybody and not nobody:",
        "if False:",
        "tests/peers/test_lies.py"
        "::test_a_member_cannot_issue_anothers_certificate_or_change_its_requests",
        "AssertionError: (0, {'receipts': [], 'pending': []})",
    ),
    Guard(
        "request ids are those that were decided",
        "peers/forgetting/peer_certificate.py",
        'stated = (said["requests"], said["peer"], said["issuer"])',
        'stated = (list(spec.requests), said["peer"], said["issuer"])',
        "tests/peers/test_lies.py"
        "::test_a_member_cannot_issue_anothers_certificate_or_change_its_requests",
        "AssertionError: (0, {'requests': ['another']})",
    ),
    Guard(
        "a transcript is what peers signed",
        "peers/forgetting/peer_certificate.py",
        "_check_visits(visits, transcript, trust, places)",
        "pass",
        "tests/peers/test_ends_in_certificates.py"
        "::test_the_transcript_is_what_peers_signed_and_decided_on",
        'assert any("hop 2 is not what peer"',
    ),
    Guard(
        "a transcript's header is what was decided",
        "peers/forgetting/peer_certificate.py",
        "_check_header(transcript, specs, said, trust.network)",
        "pass",
        "tests/peers/test_ends_in_certificates.py"
        "::test_the_transcript_is_what_peers_signed_and_decided_on",
        'assert any(f"header has {name}',
    ),
    Guard(
        "a certificate is signed with its issuer's own key",
        "peers/forgetting/peer_certificate.py",
        'if raw_key(identity.signing).hex() != signer["public_key"]:',
        "if False:",
        "tests/peers/test_lies.py"
        "::test_a_member_cannot_issue_anothers_certificate_or_change_its_requests",
        'assert any("the key that signed is not that of peer-0"',
    ),
    Guard(
        "votes are for the chapter that they are shown with",
        "peers/decisions/decided.py",
        "if decision.value != digest_of(said.text):",
        "if False:",
        "tests/peers/test_lies.py"
        "::test_a_member_cannot_issue_anothers_certificate_or_change_its_requests",
        'assert any("votes on chapter 1 are for another one"',
    ),
    Guard(
        "a revocation counts from its chapter on",
        "peers/identity/trust.py",
        "if first is not None and chapter is not None and chapter >= first:",
        "if first is not None and chapter is not None and chapter > first:",
        "tests/peers/test_lies.py"
        "::test_votes_and_receipts_of_a_peer_count_up_to_the_chapter_of_its_revocation",
        "DID NOT RAISE",
    ),
    Guard(
        "a vote counts up to the revocation of its certificate",
        "peers/decisions/votes.py",
        "chapter=matter.chapter)\n        except NotInForce:",
        "chapter=None)\n        except NotInForce:",
        "tests/peers/test_lies.py"
        "::test_votes_and_receipts_of_a_peer_count_up_to_the_chapter_of_its_revocation",
        "DID NOT RAISE",
    ),
    Guard(
        "a decision stands with the votes of as many revoked keys as may lie",
        "peers/decisions/votes.py",
        "if len(revoked) > matter.rules.lies:",
        "if len(revoked) > matter.rules.lies + 1:",
        "tests/peers/test_lies.py"
        "::test_votes_and_receipts_of_a_peer_count_up_to_the_chapter_of_its_revocation",
        "DID NOT RAISE",
    ),
    Guard(
        "nothing is erased without its successor",
        "peers/lifecycle/request_steps.py",
        "return any(progress.final(n) is not None for n in later)",
        "return bool(later)",
        "tests/peers/test_forgetting.py"
        "::test_nothing_is_erased_before_the_model_that_forgot_is_here",
        "it would be left without any model",
    ),
    Guard(
        "a transcript's lines are chained",
        "core/transcript.py",
        "if claimed != chain or line !=",
        "if False and line !=",
        "tests/core/test_transcript.py::test_any_changed_character_is_found",
        "DID NOT RAISE",
    ),
    Guard(
        "epsilon and all else is computed anew",
        "certificates/verify.py",
        "problems += _differences(document, transcript)",
        "pass",
        "tests/certificates/test_document.py::test_any_changed_field_is_found_and_named",
        "assert 3 == 1",
    ),
    Guard(
        "the register counts a second draw",
        "runs/releases.py",
        "return same and bool(self.marks & other.marks)",
        "return False",
        "tests/peers/test_register.py::test_a_visit_done_again_on_other_numbers_is_another_draw",
        "assert (2, 0) == (2, 1)",
    ),
    Guard(
        "a second draw is refused",
        "certificates/conditions.py",
        "event.draw[2] != 0",
        "False",
        "tests/runs/test_proved.py::test_other_settings_do_not_draw_again_unnoticed",
        "assert 'certified' == 'refused'",
    ),
    Guard(
        "records that noise hid before are known",
        "peers/records/noise_register.py",
        "return any(entry.place.marks & wanted for entry in draws(bundle).entries())",
        "return False",
        "tests/peers/test_register.py::test_a_draw_is_entered_once_and_found_by_any_of_its_records",
        "assert was_released(bundle, HASHES[1:])",
    ),
    Guard(
        "nothing is answered without the access token",
        "peers/web/http_server.py",
        'if path.startswith("/v1/") and not known:',
        "if False:",
        "tests/peers/test_http.py::test_nothing_without_the_token",
        "assert 200 == 401",
    ),
    Guard(
        "the access token is the right one",
        "peers/web/http_server.py",
        "return hmac.compare_digest(digest, self._token) and scheme",
        "return scheme",
        "tests/peers/test_http.py::test_nothing_without_the_token",
        "assert 200 == 401",
    ),
    Guard(
        "a route does not lead through a peer that is passed over",
        "peers/handover/checks.py",
        "if over & set(drawn.path):",
        "if False:",
        "tests/peers/test_log_lies.py"
        "::test_entries_that_do_not_go_on_from_the_one_before_them_are_refused",
        "DID NOT RAISE",
    ),
    Guard(
        "an entry that comes with a token is signed by the peer that it names",
        "peers/handover/checks.py",
        'if signer != expected or body.get("peer") != signer:',
        "if False:",
        "tests/peers/test_log_lies.py"
        "::test_entries_that_do_not_go_on_from_the_one_before_them_are_refused",
        "DID NOT RAISE",
    ),
    Guard(
        "a visit is signed by the peer that made it",
        "peers/decisions/history.py",
        "if trust.network.index(signer) != hop.receiver:",
        "if False:",
        "tests/peers/test_lies.py::test_an_issuer_cannot_leave_visits_out_or_take_others",
        "DID NOT RAISE",
    ),
    Guard(
        "votes on an end are for what is shown of it",
        "peers/decisions/decided.py",
        "if decision.value != closing.digest:",
        "if False:",
        "tests/peers/test_ends_in_certificates.py"
        "::test_every_chapter_on_the_line_is_shown_with_its_end",
        "not enough values to unpack",
    ),
    Guard(
        "a peer greets with its own key",
        "peers/transport/wire.py",
        "if signer != name:",
        "if False:",
        "tests/peers/test_wire.py"
        "::test_a_peer_that_greets_with_the_key_of_another_is_not_taken_for_it",
        "DID NOT RAISE",
    ),
    Guard(
        "what a peer signs alone is no certificate of its network",
        "certificates/verify.py",
        'if known and "peers" not in document and of_a_peer(document):',
        "if False:",
        "tests/peers/test_certificates_kept.py"
        "::test_what_a_peer_signs_alone_is_no_certificate_of_its_network",
        "assert True is False",
    ),
)
QUICK = GUARDS[0]
"""The one that the normal suite breaks: its test needs no network and no torch."""


def copied(folder: Path) -> Path:
    """The code and its tests, in a folder of their own."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_tests(folder: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """What pytest says of the copy in ``folder``, of which all modules come first."""
    path = os.pathsep.join([str(folder / "src"), str(folder)])
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-qx",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_timeout",
            *tests,
        ],
        cwd=folder,
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_every_guard_stands_where_it_is_broken(guard):
    assert (SOURCE / guard.file).read_text().count(guard.before) == 1, guard.before
    file, _, name = guard.test.partition("::")
    assert f"\ndef {name.partition('[')[0]}(" in (ROOT / file).read_text(), guard.test


@pytest.mark.parametrize(
    "guard",
    [pytest.param(g, marks=() if g is QUICK else pytest.mark.soak) for g in GUARDS],
    ids=[guard.name for guard in GUARDS],
)
def test_a_broken_guard_is_noticed(tmp_path, guard):
    place = copied(tmp_path) / "src" / "unwalk" / guard.file
    place.write_text(place.read_text().replace(guard.before, guard.after))
    found = run_tests(tmp_path, guard.test)
    assert found.returncode == 1, f"nobody noticed: {found.stdout}{found.stderr}"
    assert guard.says in found.stdout


@pytest.mark.soak
def test_with_every_guard_in_place_those_tests_pass(tmp_path):
    found = run_tests(copied(tmp_path), *dict.fromkeys(guard.test for guard in GUARDS))
    assert found.returncode == 0, found.stdout
