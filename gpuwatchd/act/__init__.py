"""What is done when somebody asks for it; nothing here is ever done by itself."""

ACTIONS: dict[str, str] = {"checkpoint": "gpuwatchd.act.checkpoint:Checkpoint"}
