"""Read XSpaces of JAX and TensorFlow (`*.xplane.pb`), one for each host: every GPU or TPU in one is a rank."""
