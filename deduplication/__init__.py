"""Recognises emails, posts and messages by their names, and remembers them.

Nothing here knows Flask or sends HTTP. Only ``journal/``, ``files.py``, ``spool.py`` and ``redis_client.py`` do I/O.
"""
