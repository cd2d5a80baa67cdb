"""Tests of the frameworks: recognition, advice, addresses, what servers say."""
