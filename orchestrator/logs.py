"""How the log looks: one line an event, ids and never contents."""

import logging


def configure_logging(level: str) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("urllib3", "pika"):  # their lines hold whole addresses, with paths, queries and logins
        logging.getLogger(chatty).setLevel(logging.CRITICAL)  # and what is wrong is told by us, without a traceback
