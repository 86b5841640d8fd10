"""Against whom a claim holds, and what it compares the run with."""

from __future__ import annotations

from typing import Any

_ALL = "everyone who sees the model after the request, and whoever has the released one"
_SEALED = (
    "everyone who sees the model after it has left the forgetting peer, and whoever has the "
    "released one"
)
_NOBODY: dict[str, Any] = {
    "observers": "nobody: no guarantee is given",
    "coalition": "none",
    "training_time_view": False,
    "adaptive_requests": False,
}
THREATS: dict[str, dict[str, Any]] = {
    "retrain": {
        "observers": _ALL,
        "coalition": "any, without the forgetting peer",
        "training_time_view": False,
        "adaptive_requests": True,
    },
    "rewind": {
        "observers": _ALL,
        "coalition": "any, without the forgetting peer",
        "training_time_view": False,
        "adaptive_requests": False,
    },
    "sums": {
        "observers": "whoever has the released model, and peers that did not keep an old token",
        "coalition": "none that holds a token from before the request",
        "training_time_view": False,
        "adaptive_requests": True,
    },
    "seal": {
        "observers": _SEALED,
        "coalition": "any, without the forgetting peer",
        "training_time_view": False,
        "adaptive_requests": False,
    },
    "ball-seal": {
        "observers": _SEALED,
        "coalition": "any, without the forgetting peer",
        "training_time_view": False,
        "adaptive_requests": True,
    },
    "release": {
        "observers": "outsiders, who see the released model and nothing before it",
        "coalition": "none: peers saw more",
        "training_time_view": False,
        "adaptive_requests": False,
    },
    "noisy-start": {
        "observers": "everyone who sees hops, of training too, and whoever has the model",
        "coalition": "any, without the forgetting peer",
        "training_time_view": True,
        "adaptive_requests": False,
    },
}
THREATS["restart"], THREATS["sisa"] = THREATS["retrain"], THREATS["rewind"]
_CERTIFIERS = {
    "retrain": "training from the initial model on all records but the forgotten ones",
    "rewind": "training on all records but the forgotten ones, with fresh coins",
    "sums": "the ridge head of all records but the forgotten ones",
    "seal": "the same seal, with the same number of records, visit times and settings, on the "
    "model trained without the forgotten records",
    "release": "the same walk and noise, from the model trained without the forgotten records",
    "noisy-start": "the same noisy training without the forgotten records",
}
_CERTIFIERS["restart"], _CERTIFIERS["sisa"] = _CERTIFIERS["retrain"], _CERTIFIERS["rewind"]
_CERTIFIERS["ball-seal"] = _CERTIFIERS["seal"]


def _proved(claims: list[dict[str, Any]]) -> bool:
    return any(claim["grade"] in ("certified", "exact") for claim in claims)


def threat_model(method: str, claims: list[dict[str, Any]]) -> dict[str, Any]:
    """Observers, coalition, training-time views and adaptive requests of what was proved."""
    return dict(THREATS.get(method, _NOBODY) if _proved(claims) else _NOBODY)


def certifier(method: str, claims: list[dict[str, Any]]) -> str | None:
    """What the run is hard to tell from; None where nothing was proved."""
    return _CERTIFIERS.get(method) if _proved(claims) else None
