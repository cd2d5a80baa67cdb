"""Answers in words: styled text, laid out by whoever shows it."""
