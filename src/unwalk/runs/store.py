"""The output folder of a run, while it grows and when it is complete.

A run to ``DIR`` grows in ``DIR.partial`` and is renamed to ``DIR`` when it is complete, so a folder
is never half-written.  After a kill, ``--resume`` continues from the last checkpoint in
``DIR.partial``; after an error the partial folder is removed.  Whoever writes there holds a lock.

A run is resumed with the same settings and the same data only.  A checkpoint depends on row
numbers: if the rows are in another order afterwards, or hold other records, resuming mixes two
runs, and claims about the forgotten records are about the wrong ones.  So ``data.json`` there holds
digests of every peer's ids, inputs and labels, of the forgotten rows, the test set, the classes and
a graph from a file.  They have no key: whoever has one can test a guess of a forgotten record.
They stay beside checkpoints that reveal more, and are deleted when the run is complete; they must
not be published, nor copied to any file that outlives that folder.

Each walk has two files in ``walks`` there: ``NAME.jsonl``, its transcript, only ever appended to,
and ``NAME.safetensors``, its last checkpoint, replaced in one step.  A checkpoint knows how many
transcript lines belong to it; lines written after it are cut off on resume.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_safetensors

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.plan import Graph, Kept, Local, Progress
from unwalk.core.token import Token, build_model
from unwalk.core.transcript import Transcript
from unwalk.methods import defaults
from unwalk.runs.assemble import resolve
from unwalk.runs.metrics import Reading
from unwalk.settings.config import Config, Value, apply, flatten, read_written, to_toml
from unwalk.tasks.blobs import Blobs
from unwalk.tasks.sources import Ids
from unwalk.tasks.task import ShardedTask

CONFIG = "config.toml"
DATA = "data.json"
SEEDS = "seeds.json"
LOCK = "lock"
SCRATCH = ("walks", "seeds")
"""Folders that a partial folder holds only so that it can be resumed."""
RESULTS = ("result.json", "audit.json", "sweep.json")
"""Files of which a complete folder holds one."""
NAMED = 3
"""How many differences a message names."""


def partial_of(out: Path) -> Path:
    """Where the results of a run to ``out`` grow until they are complete.

    >>> partial_of(Path("runs/first")).as_posix()
    'runs/first.partial'
    """
    return out.parent / f"{out.name}.partial"


def write_file(path: Path, data: bytes | str) -> None:
    """Write under a temporary name, flush to disk, rename."""
    raw = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Folder:
    """An output folder under construction; ``data`` is the digest of what the run works on.

    ``seeds`` is how many a comparison is over.  Until :meth:`release` nobody else can use it.
    """

    def __init__(
        self,
        out: Path,
        config: Config,
        data: dict[str, str],
        *,
        resume: bool,
        overwrite: bool,
        seeds: int | None = None,
    ) -> None:
        self.out = out if out.name else out.resolve()
        self.overwrite = overwrite
        self._lock: int | None = None
        if self.out.exists() and not (overwrite and _ours(self.out)):
            raise InvalidInput(_occupied(out, resume=resume, overwrite=overwrite, seeds=seeds))
        self.partial = partial_of(self.out)
        if resume and not self.partial.exists():
            raise InvalidInput(f"{self.partial} does not exist; there is nothing to resume.")
        try:
            if self.partial.is_dir():
                self._take()
                self._open(config, data, resume=resume, seeds=seeds)
            self.new_parents = [p for p in self.partial.parents if not p.exists()]
            self._make(config, data, seeds)
        except BaseException:
            self.release()
            raise

    def _open(
        self, config: Config, data: dict[str, str], *, resume: bool, seeds: int | None
    ) -> None:
        """What is there is what is to be gone on with, or goes."""
        if resume:
            self._check_same(config)
            self._check_same_data(data)
            self._check_seeds(seeds)
        elif self.overwrite:
            shutil.rmtree(self.partial)
            self.release()
        else:
            raise InvalidInput(
                f"{self.partial} holds an unfinished run; add --resume to continue it, or "
                "--overwrite to start again."
            )

    def _make(self, config: Config, data: dict[str, str], seeds: int | None) -> None:
        new = not self.partial.exists()
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
            self._take()
            write_file(self.partial / DATA, json.dumps(data))
            if seeds is not None:
                write_file(self.partial / SEEDS, json.dumps(seeds))
            write_file(self.partial / CONFIG, to_toml(config))
        except OSError as error:
            if new:
                self.discard()
            raise InvalidInput(f"{self.partial} cannot be made: {error.strerror}.") from error

    def _take(self) -> None:
        """Hold the lock; it goes with this process, however that ends."""
        if self._lock is not None or os.name != "posix":
            return
        import fcntl  # Windows has none

        try:
            lock = os.open(self.partial / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InvalidInput(f"{self.partial} cannot be used: {error.strerror}.") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            by = os.pread(lock, 20, 0).decode("ascii", "replace")
            os.close(lock)
            raise InvalidInput(
                f"{self.partial} is in use by {f'process {by}' if by else 'another process'}; wait "
                "until that has ended, or choose another --out."
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self._lock = lock

    def release(self) -> None:
        """Let others use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_seeds(self, seeds: int | None) -> None:
        """Refuse to resume a comparison over fewer seeds; more are added."""
        path = self.partial / SEEDS
        if seeds is None or not path.exists():
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        if seeds < before:
            raise InvalidInput(
                f"--seeds is {seeds}, but {self.partial} was started with {before}; resume it with "
                f"--seeds {before} or more."
            )

    def _check_same(self, config: Config) -> None:
        """Refuse to resume under other settings; a run killed very early has none on disk."""
        path = self.partial / CONFIG
        if not path.exists():
            return
        before = flatten(apply(defaults(), read_written(path), where=str(path)))
        for key, now in flatten(config).items():
            if before[key] != now:
                raise InvalidInput(
                    f"{key} is {_shown(now)}, but {self.partial} was started with "
                    f"{_shown(before[key])}; --resume needs the same settings."
                )

    def _check_same_data(self, data: dict[str, str]) -> None:
        """Refuse to resume with other data, unless nothing was walked yet."""
        if not any((self.partial / name).exists() for name in SCRATCH):
            return
        path = self.partial / DATA
        if not path.exists():
            raise InvalidInput(
                f"{self.partial} does not say which data it was started with, so it is not "
                "resumed; start again with --overwrite."
            )
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise Corrupt(f"{path} is not a digest of data ({error}).") from error
        if before != data:
            raise InvalidInput(
                f"the data are not those that {self.partial} was started with (changed: "
                f"{differences(before, data)}), and --resume needs the same data; restore them, or "
                "start again with --overwrite."
            )

    def finish(self) -> None:
        """Delete what only a resume needs, and rename the folder to its final name."""
        for name in SCRATCH:
            shutil.rmtree(self.partial / name, ignore_errors=True)
        for name in (DATA, SEEDS):
            (self.partial / name).unlink(missing_ok=True)
        if self.overwrite and self.out.exists():
            shutil.rmtree(self.out)
        self.partial.replace(self.out)
        (self.out / LOCK).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove everything that was made."""
        shutil.rmtree(self.partial, ignore_errors=True)
        for parent in self.new_parents:
            with suppress(OSError):  # not empty, or never made
                parent.rmdir()


def settings_of(run_dir: Path) -> Config:
    """The settings of a finished run, as its folder has them."""
    path = run_dir / CONFIG
    if not path.is_file():
        raise InvalidInput(f"{run_dir} has no {CONFIG}; allowed: the folder of a finished run.")
    return resolve({}, read_written(path), file_name=str(path))


def _ours(out: Path) -> bool:
    """Whether ``out`` is empty or the folder of a run: only these are replaced."""
    if out.is_symlink() or not out.is_dir():
        return False
    written = (out / CONFIG).is_file() and any((out / name).is_file() for name in RESULTS)
    return written or not any(out.iterdir())


def _occupied(out: Path, *, resume: bool, overwrite: bool, seeds: int | None) -> str:
    if overwrite:
        return f"{out} is no folder that unwalk wrote, so it stays; choose another --out."
    if resume and not partial_of(out).exists():
        held = None if seeds is None else _seeds_of(out)
        if held is None or seeds is None or held >= seeds:
            return f"{out} is complete already; there is nothing to resume."
        return (
            f"{out} is complete with {held} seed{'s' if held > 1 else ''}, and --seeds is {seeds}; "
            "whether its data were the same is not known any more, so that none is added. Choose "
            f"another --out, or --overwrite in place of --resume to run all {seeds}."
        )
    return f"{out} exists already; choose another --out, or add --overwrite."


def _seeds_of(out: Path) -> int | None:
    """Over how many seeds a complete comparison is; None if that cannot be read."""
    try:
        held: int = json.loads((out / "result.json").read_text(encoding="utf-8"))["seeds"]["runs"]
        return held
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _shown(value: Value) -> str:
    return "none" if value is None else repr(value)


def data_digest(task: ShardedTask, graph: Graph) -> dict[str, str]:
    """The parts of the data, each named in words, with its digest.

    Shards of other peers are not built for this: they would all be in memory at the same time.
    Blobs follow from the settings, which are compared anyway, so only u's records are drawn.
    """
    u = task.unlearner
    parts = {"the names of the classes": _digest(json.dumps(task.source.labels))}
    for peer in [u] if isinstance(task.holdings, Blobs) else range(task.peers):
        if peer == u:
            shard, ids = task.shard(u), task.ids(u)
            x, y = shard.x, shard.y
        else:
            table = task.holdings.table(peer)
            x, y, ids = table.x, table.y, table.ids
        parts[f"the records of peer {peer}"] = _digest(_ids(ids), x, y)
    if task.features is not None:
        parts["the map to features"] = task.features.extractor.digest
    if (loss := task.loss) is not None:
        parts["the loss"] = _digest(f"own {_named(loss)}" if task.own_loss else repr(loss))
    if task.factory.own:
        model = build_model(task.model, 0)
        parts["the model"] = _digest(repr(model), *(_named(type(part)) for part in model.modules()))
    parts["the choice of forgotten records"] = _digest(
        json.dumps(task.records(u).forgotten.tolist())
    )
    parts["the test set"] = _digest(task.test.x, task.test.y)
    if graph.kind == "edge-list":
        parts["the graph"] = _digest(_edges(graph))
    return parts


def _named(thing: object) -> str:
    """A function or a class by its name, an object by that of its class."""
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


def differences(before: dict[str, str], now: dict[str, str]) -> str:
    """The parts that differ, in words; empty if none does.

    >>> differences({"the graph": "a", "the test set": "b"}, {"the graph": "a"})
    'the test set'
    """
    changed = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    return ", ".join(changed[:NAMED]) + more


def _digest(*parts: str | torch.Tensor) -> str:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode())
            continue
        digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
        digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _ids(ids: Ids) -> str:
    return json.dumps([str(name) for name in ids])


def _edges(graph: Graph) -> str:
    return json.dumps([graph.neighbours(peer).tolist() for peer in range(graph.peers)])


class WalkFile:
    """Checkpoints of one walk."""

    def __init__(self, folder: Folder, name: str) -> None:
        place = folder.partial / "walks"
        place.mkdir(exist_ok=True)
        self.lines_path = place / f"{name}.jsonl"
        self.state_path = place / f"{name}.safetensors"
        self.written = 0

    def load(self) -> tuple[Progress, list[Reading], list[float], dict[int, Token]] | None:
        """Progress, readings, seconds per hop and ends of shards' walks at the last checkpoint."""
        if not self.state_path.exists():
            self.lines_path.unlink(missing_ok=True)
            return None
        tensors: dict[str, torch.Tensor] = {}
        try:
            with safe_open(self.state_path, framework="pt") as file:
                header = json.loads(file.metadata()["unwalk-checkpoint"])
                for key in file.keys():  # noqa: SIM118
                    tensors[key] = file.get_tensor(key)
            with self.lines_path.open(encoding="utf-8") as file:
                lines = list(islice(file, header["lines"]))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"{self.state_path} is not a checkpoint ({error}).") from error
        transcript = Transcript.parse(lines)
        if transcript.chain != header["chain"]:
            raise Corrupt(f"{self.lines_path} is not the transcript of its checkpoint.")
        write_file(self.lines_path, transcript.text())
        self.written = len(transcript.lines)
        arrivals: dict[str, Any] = header["arrivals"]
        progress = Progress(
            token=_token(header["token"], tensors, "token/"),
            locals=_locals(header["locals"], tensors, "local/"),
            anchors=_group(tensors, "anchor/"),
            transcript=transcript,
            arrivals={int(hop): _kept(hop, kept, tensors) for hop, kept in arrivals.items()},
        )
        ends = {
            int(shard): _token(token, tensors, f"end/{shard}/")
            for shard, token in header["ends"].items()
        }
        return progress, [Reading(**r) for r in header["readings"]], header["seconds"], ends

    def save(
        self,
        progress: Progress,
        readings: list[Reading],
        seconds: list[float],
        ends: dict[int, Token],
    ) -> None:
        """Append new transcript lines, then replace the checkpoint."""
        fresh = progress.transcript.lines[self.written :]
        with self.lines_path.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in fresh)
            file.flush()
            os.fsync(file.fileno())
        self.written += len(fresh)
        header = {
            "token": progress.token.header(),
            "lines": self.written,
            "chain": progress.transcript.chain,
            "locals": _local_headers(progress.locals),
            "arrivals": {
                str(hop): {"token": kept.token.header(), "locals": _local_headers(kept.locals)}
                for hop, kept in progress.arrivals.items()
            },
            "readings": [asdict(r) for r in readings],
            "seconds": seconds,
            "ends": {str(shard): token.header() for shard, token in ends.items()},
        }
        tensors = {f"token/{k}": v for k, v in progress.token.tensors().items()}
        tensors |= {f"anchor/{k}": v for k, v in progress.anchors.items()}
        tensors |= _local_tensors(progress.locals, "local/")
        for hop, kept in progress.arrivals.items():
            place = f"arrival/{hop}/"
            tensors |= {f"{place}token/{k}": v for k, v in kept.token.tensors().items()}
            tensors |= _local_tensors(kept.locals, f"{place}local/")
        for shard, token in ends.items():
            tensors |= {f"end/{shard}/{k}": v for k, v in token.tensors().items()}
        flat = {k: v.detach().to("cpu").contiguous() for k, v in tensors.items()}
        data = save_safetensors(flat, metadata={"unwalk-checkpoint": json.dumps(header)})
        write_file(self.state_path, data)


def _group(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}


def _token(header: dict[str, Any], tensors: dict[str, torch.Tensor], place: str) -> Token:
    return Token(
        parameters=tensors[f"{place}parameters"],
        buffers=_group(tensors, f"{place}buffer/"),
        moments=_group(tensors, f"{place}moment/"),
        kept=_group(tensors, f"{place}kept/"),
        sums=_group(tensors, f"{place}sum/"),
        **header,
    )


def _locals(
    header: dict[str, Any], tensors: dict[str, torch.Tensor], place: str
) -> dict[int, Local]:
    return {
        int(peer): Local(
            **numbers,
            moments=_group(tensors, f"{place}{peer}/moment/"),
            sums=_group(tensors, f"{place}{peer}/sum/"),
        )
        for peer, numbers in header.items()
    }


def _local_headers(locals_: dict[int, Local]) -> dict[str, dict[str, Any]]:
    names = ("visits", "optimizer_steps", "phase", "in_phase")
    return {str(peer): {n: getattr(local, n) for n in names} for peer, local in locals_.items()}


def _local_tensors(locals_: dict[int, Local], place: str) -> dict[str, torch.Tensor]:
    return {
        f"{place}{peer}/{group}/{name}": tensor
        for peer, local in locals_.items()
        for group, members in (("moment", local.moments), ("sum", local.sums))
        for name, tensor in members.items()
    }


def _kept(hop: str, header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Kept:
    place = f"arrival/{hop}/"
    return Kept(
        _token(header["token"], tensors, f"{place}token/"),
        _locals(header["locals"], tensors, f"{place}local/"),
    )
