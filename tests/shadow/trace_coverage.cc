#include "shadow/engine_trace.h"

namespace fathom {

void TraceCoverage::Add(const TraceCoverage& o) {
  operations += o.operations;
  steps += o.steps;
  requests += o.requests;
  finished += o.finished;
  refused += o.refused;
  failed += o.failed;
  timed_out += o.timed_out;
  preemptions += o.preemptions;
  aborted_waiting += o.aborted_waiting;
  aborted_running += o.aborted_running;
  aborted_in_flight += o.aborted_in_flight;
  aborted_twice += o.aborted_twice;
  evicted += o.evicted;
  tombstones += o.tombstones;
  shadow.rows += o.shadow.rows;
  shadow.checked += o.shadow.checked;
  shadow.hits += o.shadow.hits;
  shadow.hits_by_decoding += o.shadow.hits_by_decoding;
  shadow.poisoned += o.shadow.poisoned;
  shadow.placeholders += o.shadow.placeholders;
  shadow.scored += o.shadow.scored;
  shadow.nodes += o.shadow.nodes;
}

std::string TraceCoverage::Text() const {
  return fmt::format(
      "{} operations, {} steps, {} requests: {} finished, {} refused, {} failed, {} timed out; "
      "aborted {} waiting, {} running, {} in flight, {} twice; {} preemptions; {} rows, {} rows "
      "checked, {} hits, {} of them on decoded text, {} pages poisoned, {} placeholders, {} tokens "
      "scored, {} nodes "
      "audited, {} evicted, {} tombstones",
      operations, steps, requests, finished, refused, failed, timed_out, aborted_waiting,
      aborted_running, aborted_in_flight, aborted_twice, preemptions, shadow.rows, shadow.checked,
      shadow.hits, shadow.hits_by_decoding, shadow.poisoned, shadow.placeholders, shadow.scored,
      shadow.nodes, evicted, tombstones);
}

}  // namespace fathom
