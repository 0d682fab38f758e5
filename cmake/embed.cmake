# fathom_embed(target file name): builds the bytes of `file` into `target` as
#   namespace fathom::embedded { extern const char NAME[]; extern const size_t NAME_size; }
# so that the program needs no file beside it. The array ends with a 0 that NAME_size does not count.
function(fathom_embed target file name)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded/${name}.cc)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(READ ${source} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${hex}")
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT "#include <cstddef>
namespace fathom::embedded {
extern const char @name@[];
extern const size_t @name@_size;
const char @name@[] = {@bytes@0};
const size_t @name@_size = @size@;
}  // namespace fathom::embedded
")
  target_sources(${target} PRIVATE ${output})
endfunction()
