"""From a request to results: cases, the backend of each, and the searches over them."""
