"""How people are told; one file per channel."""

NOTIFIERS: dict[str, str] = {
    "desktop": "gpuwatchd.notify.channels.desktop.channel:DesktopNotifier",
    "email": "gpuwatchd.notify.channels.email.channel:EmailNotifier",
    "chat": "gpuwatchd.notify.channels.chat:ChatNotifier",
    "command": "gpuwatchd.notify.channels.command:CommandNotifier",
}
