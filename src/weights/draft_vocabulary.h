#pragma once
// Which embedding and output head a drafter uses. QuaRot checkpoints carry dedicated ones, because
// the target's are rotated; they win over the shared ones wherever they lie in the files, since a
// drafter on the wrong basis accepts next to nothing. Source: deepseek_v4.md 2.6.
//
//   embedding  mtp.0.embed.weight or mtp.0.emb.tok_emb.weight, else embed.weight
//   head       mtp.<last>.head.weight, else head.weight

#include <string>

#include "base/error.h"
#include "weights/checkpoint.h"

namespace fathom {

struct DraftVocabulary {
  const Tensor* embed = nullptr;
  const Tensor* head = nullptr;
  bool own_embed = false;
  bool own_head = false;

  std::string Text() const;  // one line for the log
};

// Errors: no drafter in the checkpoint, one of two names missing everywhere, both names of the
// embedding present. The tensors live as long as the checkpoint.
Result<DraftVocabulary> SelectDraftVocabulary(const Checkpoint& checkpoint);

}  // namespace fathom
