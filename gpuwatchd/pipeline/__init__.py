"""Where everything meets: read, remember, judge, decide, notify; what a part raises ends here."""
