"""How the daemon is kept alive; one file per service manager."""

MANAGERS: dict[str, str] = {
    "systemd": "gpuwatchd.service.systemd:Systemd",
    "launchd": "gpuwatchd.service.launchd:Launchd",
}
