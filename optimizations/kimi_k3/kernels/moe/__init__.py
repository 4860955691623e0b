"""Operation: latent mixture of experts and SiTU MLPs."""
