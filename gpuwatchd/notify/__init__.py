"""How people are told; one file per channel."""

NOTIFIERS: dict[str, str] = {
    "desktop": "gpuwatchd.notify.desktop:DesktopNotifier",
    "email": "gpuwatchd.notify.email:EmailNotifier",
    "chat": "gpuwatchd.notify.chat:ChatNotifier",
    "command": "gpuwatchd.notify.command:CommandNotifier",
}
