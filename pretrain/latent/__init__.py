"""A trained latent space put to use: texts to vectors and back, between texts, on a map."""
