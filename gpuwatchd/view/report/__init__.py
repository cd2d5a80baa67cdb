"""What a report says: of a period, of a process, of logs; as a page, as text, as JSON."""
