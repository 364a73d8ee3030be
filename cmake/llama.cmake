# ggml, libllama and llama-common as one imported target, sluice_llama.
set(SLUICE_LLAMA_SOURCE "" CACHE PATH "a llama.cpp checkout to use instead of the pinned one")
set(SLUICE_LLAMA_BUILD "" CACHE PATH "its build folder")

add_library(sluice_llama INTERFACE)
target_include_directories(sluice_llama SYSTEM INTERFACE
  ${SLUICE_LLAMA_SOURCE}/include ${SLUICE_LLAMA_SOURCE}/ggml/include ${SLUICE_LLAMA_SOURCE}/common)
find_package(OpenMP)
target_link_libraries(sluice_llama INTERFACE
  ${SLUICE_LLAMA_BUILD}/common/libllama-common.a
  ${SLUICE_LLAMA_BUILD}/common/libllama-common-base.a
  ${SLUICE_LLAMA_BUILD}/src/libllama.a
  ${SLUICE_LLAMA_BUILD}/ggml/src/libggml.a
  ${SLUICE_LLAMA_BUILD}/ggml/src/libggml-cpu.a
  ${SLUICE_LLAMA_BUILD}/ggml/src/libggml-base.a
  OpenMP::OpenMP_CXX Threads::Threads ${CMAKE_DL_LIBS})
