"""A token walk over Flower; runs in Flower's own environment.

The server's part sends the parameters to one node, waits for them to come back, and sends them to
the next one.  A visit changes every number and notes when it began and ended.  Flower's own
``send_and_receive`` looks for answers every three seconds (in the simulation ten times a second);
here they are looked for every 20 ms, which is kinder to Flower.

The simulation hands no configuration in: it stands in the variable ``WALK``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

LOOK = 0.02

server = ServerApp()
client = ClientApp()


def settings_of(context: Context) -> Mapping[str, Any]:
    """How the walk goes."""
    return context.run_config or json.loads(os.environ["WALK"])


@client.train()
def visit(message: Message, context: Context) -> Message:
    """Change the parameters."""
    begun = time.monotonic()
    (array,) = message.content["token"].to_numpy_ndarrays()
    token = ArrayRecord([array * np.float32(0.99)])
    record = {"began": begun, "ended": time.monotonic(), "site": str(context.node_id)}
    with Path(str(settings_of(context)["out"])).open("a") as file:
        file.write(json.dumps(record) + "\n")
    return Message(content=RecordDict({"token": token}), reply_to=message)


@server.main()
def walk(grid: Grid, context: Context) -> None:
    """Send the token round."""
    settings = settings_of(context)
    peers, hops = int(settings["peers"]), int(settings["hops"])
    nodes = sorted(grid.get_node_ids())
    while len(nodes) < peers:
        time.sleep(0.5)
        nodes = sorted(grid.get_node_ids())
    token = ArrayRecord([np.ones(int(settings["numbers"]), np.float32)])
    for hop in range(hops):
        content = RecordDict({"token": token})
        message = Message(content, dst_node_id=nodes[hop % peers], message_type="train")
        names = list(grid.push_messages([message]))
        answers = list(grid.pull_messages(names))
        while not answers:
            time.sleep(LOOK)
            answers = list(grid.pull_messages(names))
        token = answers[0].content["token"]
    (array,) = token.to_numpy_ndarrays()
    good = np.allclose(array, np.float32(0.99) ** hops, rtol=1e-4)
    Path(str(settings["out"])).with_suffix(".done").write_text("ok" if good else "wrong")
