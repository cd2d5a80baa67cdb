"""What the program answers, recorded before a move of its parts and compared byte for byte after.

``python -m tests.recordings write`` records everything in ``expected/``; ``... compare`` says what
differs. With ``--to FOLDER`` the first leaves every text whole in a folder, and the second shows
how each differing one differs from such a folder, written at an earlier commit.
"""
