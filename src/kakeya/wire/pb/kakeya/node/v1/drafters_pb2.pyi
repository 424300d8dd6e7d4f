from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListDraftersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrafterCard(_message.Message):
    __slots__ = ("model_id", "verifier", "vocab_size", "hidden_size", "num_layers", "tokenizer_sha256", "aux_layers", "max_context_len", "max_num_drafts", "restores", "family", "mask_id")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    AUX_LAYERS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    MASK_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    verifier: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    tokenizer_sha256: str
    aux_layers: _containers.RepeatedScalarFieldContainer[int]
    max_context_len: int
    max_num_drafts: int
    restores: bool
    family: str
    mask_id: int
    def __init__(self, model_id: _Optional[str] = ..., verifier: _Optional[str] = ..., vocab_size: _Optional[int] = ..., hidden_size: _Optional[int] = ..., num_layers: _Optional[int] = ..., tokenizer_sha256: _Optional[str] = ..., aux_layers: _Optional[_Iterable[int]] = ..., max_context_len: _Optional[int] = ..., max_num_drafts: _Optional[int] = ..., restores: _Optional[bool] = ..., family: _Optional[str] = ..., mask_id: _Optional[int] = ...) -> None: ...

class ProposerCard(_message.Message):
    __slots__ = ("model_id", "vocab_size", "tokenizer_sha256", "max_context_len", "max_num_drafts", "num_steps")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    vocab_size: int
    tokenizer_sha256: str
    max_context_len: int
    max_num_drafts: int
    num_steps: int
    def __init__(self, model_id: _Optional[str] = ..., vocab_size: _Optional[int] = ..., tokenizer_sha256: _Optional[str] = ..., max_context_len: _Optional[int] = ..., max_num_drafts: _Optional[int] = ..., num_steps: _Optional[int] = ...) -> None: ...

class ListDraftersResponse(_message.Message):
    __slots__ = ("drafters", "proposers")
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    PROPOSERS_FIELD_NUMBER: _ClassVar[int]
    drafters: _containers.RepeatedCompositeFieldContainer[DrafterCard]
    proposers: _containers.RepeatedCompositeFieldContainer[ProposerCard]
    def __init__(self, drafters: _Optional[_Iterable[_Union[DrafterCard, _Mapping]]] = ..., proposers: _Optional[_Iterable[_Union[ProposerCard, _Mapping]]] = ...) -> None: ...
