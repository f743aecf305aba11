"""Fields of config.json that say nothing of the function from tokens to logits, and may hold anything."""

PROVENANCE = """
    _attn_implementation_autoset _name_or_path architectures dtype is_llama_config model_type name_or_path
    tokenizer_class torch_dtype transformers.js_config transformers_version unsloth_fixed unsloth_version use_cache
"""

TRAINING = """
    embd_pdrop gradient_checkpointing hidden_dropout initializer_range resid_pdrop
"""

TASKS = """
    _num_labels finetuning_task id2label label2id num_labels problem_type summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj task_specific_params
"""

# The length a model was trained for moves no logit of a shorter text, and a longer one is the caller's business.
LENGTHS = "max_sequence_length n_ctx"

# These two change the order of a sum, not its value.
ROUNDING = "pretraining_tp reorder_and_upcast_attn"

TOKENS = """
    bos_token_id decoder_start_token_id eos_token_id eos_token_ids forced_bos_token_id forced_eos_token_id pad_token_id
    prefix sep_token_id
"""

# What generation reads, and what a call may ask to be given back.
GENERATION = """
    assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
    exponential_decay_length_penalty length_penalty max_length min_length no_repeat_ngram_size num_assistant_tokens
    num_assistant_tokens_schedule num_beam_groups num_beams num_return_sequences output_attentions
    output_hidden_states output_past output_scores remove_invalid_values repetition_penalty return_dict
    return_dict_in_generate suppress_tokens target_lookbehind temperature tie_last_hidden_states top_k top_p torchscript
    typical_p use_bfloat16
"""

SILENT = frozenset(" ".join([PROVENANCE, TRAINING, TASKS, LENGTHS, ROUNDING, TOKENS, GENERATION]).split())

HARMLESS = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "tie_encoder_decoder": False,
}
"""Fields of every transformers config, and the value at which they change nothing."""
