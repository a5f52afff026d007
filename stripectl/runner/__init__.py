"""From a request to results: cases, the backend that each is given to, and the searches over them."""
