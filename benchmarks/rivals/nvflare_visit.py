"""What a site does in NVFlare's cyclic job: change every number, note when that began and ended."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.shareable import Shareable


class Visit(Executor):
    """One visit."""

    def __init__(self, out: str) -> None:
        super().__init__()
        self.out = out

    def execute(self, task_name, shareable, fl_ctx, abort_signal) -> Shareable:
        begun = time.monotonic()
        data = from_shareable(shareable).data
        data = {name: array * np.float32(0.99) for name, array in data.items()}
        record = {"began": begun, "ended": time.monotonic(), "site": fl_ctx.get_identity_name()}
        with Path(self.out).open("a") as file:
            file.write(json.dumps(record) + "\n")
        return DXO(DataKind.WEIGHTS, data=data).to_shareable()
