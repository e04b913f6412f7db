"""How much of what a sender chose is worked at, at every door alike. What is cut is cut before the work.

The text of an email is not cut: its fingerprint is over all of it, and the webhook carries the body in full.
"""

MAX_HEADER_CHARS = 64 * 1024  # subject, sender, date, Message-ID and other ids, each
MAX_DATE_CHARS = 1000
MAX_NAME_CHARS = 1000  # of a file, of an address
MOST_RECIPIENTS = 1000
MOST_ATTACHMENTS = 1000
MOST_LINKS = 1000  # and as many images; 50 are claimed
MAX_LINK_CHARS = 8 * 1024
MAX_SITE_CHARS = 500  # of an address on the web, up to its path
MAX_FIRST_WORDS_CHARS = 100_000  # in which the first ten words of a text are looked for
MAX_FOLDED_CHARS = 1_000_000  # of a text in which routes look for words whatever their case and accents
