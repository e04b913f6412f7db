"""The verdict on names, and the stores that remember them.

Nothing here knows Flask or sends HTTP. Outside ``stores/`` and ``redis_client.py`` nothing does I/O.
"""
