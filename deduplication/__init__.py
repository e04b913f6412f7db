"""Recognises emails, posts and messages by their names, and remembers them.

Nothing here knows Flask or sends HTTP. I/O is done in ``journal/``, ``files.py`` and ``redis_client.py`` only.
"""
