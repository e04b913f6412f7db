"""README.md and docs/*.md, tried as their readers try them.

The rule: whatever a page shows can be done as shown, and a test here does it. A block of a kind that nothing covers
fails. The kind of a block is its language (```sh); an indented block has none, and is known by how it begins.

sh          Each command by its program, after settings such as ``PORT=80`` in front of it (which must be settings):
            curl            sent to a server instead of http://127.0.0.1:8000; the response must not be an error
            .venv/bin/...   run in the folder of a service that has got the emails of README and first-steps.md;
                            ``| sh`` behind a ``sample`` sends what it printed. ``worker``, ``serve`` and ``listen``
                            are started
            make            ``make run`` is started; of others the target exists
            others          (systemctl, docker, redis-cli...) are for another machine: the files of this repository
                            that they name exist, and so do the units, services and settings
toml        Loads as mailonce.toml, with its providers; every env:NAME in it has a value.
python      Runs in a fresh interpreter. The first line ``# name.py`` names the file it is to be saved as; one that ends
            in ``app.run(port=...)`` is started, and gets a webhook.
ini         Settings, one NAME=value a line.
json        An answer: that of the curl line above it, at first or when it is sent again. Without one above, it parses.
http        A webhook, with the headers and fields of a real one.
text        What the command above it, under the same heading, prints; ids, times and numbers may differ. Where there is
            none, lines of the log (the log has them, or the code has four words of each in a row), or a picture of
            folders with arrows: they exist.
others      (js, php...) Stand word for word in a file of this repository, below examples/ or deploy/.

Within a line of prose, code is checked where it can be: settings and their values, make targets, commands of mailonce
with their options, paths, addresses of the API, keys of mailonce.toml. Links lead to files and headings that exist.
"""
