"""`attn demo`: a real model in both twins, parity, and one training that crosses between the frameworks twice."""
