"""What may be done to a process or a job; that it is asked for or allowed is decided elsewhere."""

ACTIONS: dict[str, str] = {"checkpoint": "gpuwatchd.act.checkpoint:Checkpoint"}
