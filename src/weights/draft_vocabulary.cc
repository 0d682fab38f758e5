#include "weights/draft_vocabulary.h"

namespace fathom {
namespace {

Result<const Tensor*> Shared(const Checkpoint& checkpoint, const char* name) {
  const Tensor* t = checkpoint.Find(name);
  if (t != nullptr) return t;
  return Fail(ErrorCode::kNotFound,
              "{}: tensor '{}' is missing, and the drafter has none of its own; fetch the whole "
              "checkpoint",
              checkpoint.dir(), name);
}

}  // namespace

std::string DraftVocabulary::Text() const {
  return fmt::format("draft vocabulary: {} embedding '{}', {} head '{}'",
                     own_embed ? "own" : "shared", embed->name, own_head ? "own" : "shared",
                     head->name);
}

Result<DraftVocabulary> SelectDraftVocabulary(const Checkpoint& checkpoint) {
  const int64_t stages = checkpoint.draft_stages();
  if (stages == 0) {
    return Fail(ErrorCode::kNotFound, "{}: no tensor begins with 'mtp.0.'; there is no drafter",
                checkpoint.dir());
  }
  DraftVocabulary v;
  const Tensor* embed = checkpoint.Find("mtp.0.embed.weight");
  const Tensor* token_embed = checkpoint.Find("mtp.0.emb.tok_emb.weight");
  if (embed != nullptr && token_embed != nullptr) {
    return Invalid("{}: both '{}' and '{}' are present; only one can be the drafter's embedding",
                   checkpoint.dir(), embed->name, token_embed->name);
  }
  v.embed = embed != nullptr ? embed : token_embed;
  v.own_embed = v.embed != nullptr;
  if (!v.own_embed) {
    TRY(v.embed, Shared(checkpoint, "embed.weight"));
  }
  v.head = checkpoint.Find(fmt::format("mtp.{}.head.weight", stages - 1));
  v.own_head = v.head != nullptr;
  if (!v.own_head) {
    TRY(v.head, Shared(checkpoint, "head.weight"));
  }
  return v;
}

}  // namespace fathom
