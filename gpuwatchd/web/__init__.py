"""The live page and the JSON API: Starlette and uvicorn (extra ``web``), behind a narrow door.

``security`` is the door, ``tokens`` its key, ``listening`` where it is, ``server`` what runs it;
``verbs`` asks the verbs of ``gpuwatchctl``, ``endpoints`` says which address asks which of them,
``api`` answers, ``openapi`` describes all of it, and ``files`` has the pages.
"""
