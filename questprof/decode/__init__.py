"""One whole decode step of a Llama-like model: configuration, weights, parts, measuring."""
