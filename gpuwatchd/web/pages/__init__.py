"""What ``gpuwatchctl web`` shows in the browser: a pair of files for each view.

``NAME.py`` says what there is, in the words that the verbs use; ``NAME.js`` draws it. Nothing is
formatted twice: the browser gets words.
"""
