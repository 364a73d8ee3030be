# ggml, libllama and llama-common as one imported target, sluice_llama.
#
# tools/llama.sh obtains the pinned source and builds it once under build/deps, for all presets.
# SLUICE_LLAMA_SOURCE names a checkout to use instead; with SLUICE_LLAMA_BUILD as well, that build
# is taken as it is.
set(SLUICE_LLAMA_SOURCE "$ENV{SLUICE_LLAMA_SOURCE}" CACHE PATH
    "a llama.cpp checkout to use instead of the pinned source")
set(SLUICE_LLAMA_BUILD "" CACHE PATH "a finished build of SLUICE_LLAMA_SOURCE, used as it is")

if(SLUICE_LLAMA_SOURCE AND SLUICE_LLAMA_BUILD)
  set(llama_source ${SLUICE_LLAMA_SOURCE})
  set(llama_build ${SLUICE_LLAMA_BUILD})
else()
  set(source_option)
  if(SLUICE_LLAMA_SOURCE)
    set(source_option --source ${SLUICE_LLAMA_SOURCE})
  endif()
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/llama.sh ${source_option}
                  OUTPUT_VARIABLE llama_folders OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" llama_folders "${llama_folders}")
  list(GET llama_folders 0 llama_source)
  list(GET llama_folders 1 llama_build)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
               ${PROJECT_SOURCE_DIR}/build/deps/current ${PROJECT_SOURCE_DIR}/tools/llama.sh
               ${PROJECT_SOURCE_DIR}/tools/pins/llama.txt)
endif()
message(STATUS "llama.cpp: ${llama_build}")

add_library(sluice_llama INTERFACE)
target_include_directories(sluice_llama SYSTEM INTERFACE
  ${llama_source}/include ${llama_source}/ggml/include ${llama_source}/common)
# In the order in which they need each other.
target_link_libraries(sluice_llama INTERFACE
  ${llama_build}/common/libllama-common.a
  ${llama_build}/common/libllama-common-base.a
  ${llama_build}/vendor/cpp-httplib/libcpp-httplib.a
  ${llama_build}/src/libllama.a
  ${llama_build}/ggml/src/libggml.a
  ${llama_build}/ggml/src/libggml-cpu.a
  ${llama_build}/ggml/src/libggml-base.a
  Threads::Threads ${CMAKE_DL_LIBS})

# Ours has OpenMP (tools/llama.sh says why); a build that was handed in may not. The runtime is the
# one that it was built for, whatever compiles us: clang of the fuzz preset has none of its own.
if(EXISTS ${llama_build}/CMakeCache.txt)
  file(STRINGS ${llama_build}/CMakeCache.txt llama_openmp
       REGEX "^(GGML_OPENMP_ENABLED:.*=ON|OpenMP_[a-z0-9]+_LIBRARY:.*)$")
  if(llama_openmp MATCHES "GGML_OPENMP_ENABLED")
    list(FILTER llama_openmp INCLUDE REGEX "_LIBRARY:")
    list(TRANSFORM llama_openmp REPLACE "^[^=]*=" "")
    list(FILTER llama_openmp EXCLUDE REGEX "pthread")   # Threads::Threads, above
    target_link_libraries(sluice_llama INTERFACE ${llama_openmp})
  endif()
endif()
