"""The backend of TensorRT 8.6, 10, 11 and TensorRT-RTX.

No other package imports ``tensorrt`` or ``tensorrt_rtx``. The features of a release are read from its API once, into
`BackendCapabilities`. A process can use only one of the two packages, since Polygraphy chooses between them when it is
imported.
"""
