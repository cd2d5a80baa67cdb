"""Tests of the questions to serving engines, against servers on the loopback."""
