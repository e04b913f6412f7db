"""GET /api/openapi.json: the API as a document of OpenAPI 3.1.

document.py walks the routes of the application. What each takes and answers stands in operations.py, and for the doors
in doors.py; the pydantic models they name are in answers.py, requests.py and webhooks.py. The models describe and check
nothing: tests hold every answer against the document. A route that nobody described is an error.

All of it is loaded when somebody asks for the document, and so costs an email nothing.
"""
