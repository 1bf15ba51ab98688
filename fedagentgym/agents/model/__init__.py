"""The language model.

* `architectures`, `decoder`: the configuration and the weights of the models that this package implements (Llama's family), and
  their folder; `shapes`: sizes of models without loading them; `names`: names of parameters;
* `layer`: one layer; `packed`: all layers over whole rows with gradients; `cached`, `cache`: all layers over new tokens of rows
  whose keys and values are kept;
* `generate`: replies of many rows, by any model that computes logits, with constraints and forks; drawing tokens;
  `joined`: one batch for the rows of several adapters;
* `hf`: every other model, by its own modules; `vllm`, `vllm_server`: generation by vLLM, in this process or by servers;
* `policy`: a model that plays and learns in this process; `loading`: models from a folder, and untrained tiny ones;
* `store`, `sources`, `gguf`, `pretrained`: models by name, fetched or copied once into the cache, or shipped with this package.
"""
