"""The live page and the JSON API: Starlette and uvicorn (extra ``web``), behind a narrow door.

``auth`` is the door and its key, ``server`` what runs it and where it listens; ``openapi`` says
which address asks which verb of ``gpuwatchctl``, and describes all of it; ``api`` answers,
``responses`` has refusals and files, and ``pages`` what the live page shows.
"""
