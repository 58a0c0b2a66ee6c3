"""TensorRT 8.6, 10, 11 and TensorRT-RTX.

The only room that imports ``tensorrt`` or ``tensorrt_rtx``. What a release can do is read from its API once, into
`BackendCapabilities`. A process can use one of the two packages, since Polygraphy chooses between them when it is
imported.
"""
