"""The language model.

* `architectures`, `decoder`: the configuration and the weights of the models that this package implements (Llama's family), and
  their folder; `tiny`: a small one from nothing; `shapes`: sizes of models without loading them;
* `layer`: one layer; `packed`: all layers over whole rows with gradients; `cached`, `cache`: all layers over new tokens of rows
  whose keys and values are kept;
* `generate`: replies of many rows, by any model that computes logits, with constraints and forks; drawing tokens;
* `hf`: every other model, by its own modules; `vllm`: generation by vLLM;
* `policy`: a model that plays and learns in this process; `loading`: from a folder, to a device;
* `store`, `sources`, `gguf`, `pretrained`: models by name, fetched or copied once into the cache, or shipped with this package.
"""
