"""GET /api/openapi.json: the API as a document of OpenAPI 3.1.

document.py walks the routes of the application. operations.py says what each accepts and answers, doors.py does so for
the endpoints of providers. Most models are those that the views read and return (routes/questions.py and
orchestrator/operations); those in answers.py, requests.py and webhooks.py only describe, and tests compare every answer
with the document. A route without a description is an error.

All of it is loaded when the document is first asked for, and so costs an email nothing.
"""
