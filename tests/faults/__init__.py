"""The fault matrix: two real servers, a real Redis behind a proxy, and a counting sink as the judge."""
