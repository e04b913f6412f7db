"""GET /api/openapi.json: the API as an OpenAPI 3.1 document, generated from the operations attached to the views.

webhooks.py describes what is sent to destinations. Tests compare every response and webhook with the document, and a
route without an operation is an error. All of this is imported when the document is first requested, so that it costs
emails nothing.
"""
