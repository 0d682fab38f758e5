#pragma once

namespace fathom {

inline constexpr const char* kVersion = FATHOM_VERSION;

}  // namespace fathom
