#pragma once
// ConfigReader: typed, range-checked access to the keys of a JSON object. The first fault is kept
// and later reads return their default, so that parsing reads as a list of keys; status() tells at
// the end. Every message is "<path>: key 'a.b' ..." and names what is accepted.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace fathom {

class ConfigReader {
 public:
  // `json` is an object that outlives the reader, or nullptr for one without keys.
  ConfigReader(const Json* json, std::string path);

  // Names of one key, the first that is present wins.
  using Names = std::initializer_list<std::string_view>;

  bool Has(Names names) const { return Find(names) != nullptr; }

  int64_t Int(Names names, int64_t min, int64_t max);
  int64_t IntOr(Names names, int64_t fallback, int64_t min, int64_t max);
  float Float(Names names, float min, float max);
  float FloatOr(Names names, float fallback, float min, float max);
  bool BoolOr(Names names, bool fallback);
  std::string String(Names names);
  std::string StringOr(Names names, std::string fallback);
  std::vector<int32_t> Ints(Names names, int32_t min, int32_t max);
  std::vector<int32_t> IntOrInts(Names names, int32_t min, int32_t max);
  std::vector<std::string> Strings(Names names);

  // The value must be one of `allowed` where the key is present.
  void Require(Names names, std::initializer_list<std::string_view> allowed);

  // The object under a key; nullptr, and a fault, where it is missing or not an object.
  const Json* Object(Names names);
  // A reader of that object whose keys are named "name.key"; faults go to this reader through
  // Merge.
  ConfigReader Nested(Names names);
  void Merge(const ConfigReader& nested);

  // Records a fault: "<path>: key '<name>' <reason>".
  void Fault(std::string_view name, const std::string& reason);
  void FaultUnimplemented(std::string_view name, const std::string& reason);

  bool ok() const { return error_.message.empty(); }
  Status status() const;

 private:
  const Json* Find(Names names) const;
  const Json* Need(Names names);
  std::string Key(std::string_view name) const { return prefix_ + std::string(name); }

  const Json* json_;
  std::string path_;
  std::string prefix_;
  Error error_;
};

}  // namespace fathom
