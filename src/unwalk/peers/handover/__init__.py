"""One walk at one peer: the token taken, visited and handed on."""
