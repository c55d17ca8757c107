"""Int8 models that are smaller and faster: converted, run without the rest of the project, and measured against the fp32 model."""
